"""TLS, with an authority of the test's own: who is trusted gets in, everybody else does not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

from gateway.errors import RequestError
from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.conftest import settings_for

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed: no certificates can be made")


@dataclass(frozen=True)
class Authority:
    """Makes certificates in a folder of its own."""

    folder: Path

    @property
    def root(self) -> bytes:
        return (self.folder / "ca.pem").read_bytes()

    def create(self) -> Authority:
        self.folder.mkdir()
        self._run("req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
        return self

    def issue(self, name: str, *, days: str = "1") -> tuple[str, str]:
        """A certificate for this host name or address, and its key."""
        kind = "IP" if name[0].isdigit() else "DNS"
        (self.folder / "names").write_text(f"subjectAltName={kind}:{name}")
        self._run("req", *self._new_key("server"), "-out", "server.csr", "-subj", f"/CN={name}")
        signed = ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        self._run(*signed, "-out", "server.pem", "-days", days, "-extfile", "names")
        return str(self.folder / "server.pem"), str(self.folder / "server.key")

    def _new_key(self, name: str) -> tuple[str, ...]:
        return "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"

    def _run(self, *arguments: str) -> None:
        assert OPENSSL is not None
        subprocess.run([OPENSSL, *arguments], cwd=self.folder, check=True, capture_output=True, timeout=60)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority").create()


@pytest.fixture
def serving(tmp_path: Path, authority: Authority) -> Iterator[Gateway]:
    warehouse = tmp_path / "warehouse"
    write_deltalake(warehouse / "s" / "t", pa.table({"k": [1, 2, 3]}))
    certificate, key = authority.issue("127.0.0.1")
    flight_settings = {"tls_certificate": certificate, "tls_key": key}
    settings = settings_for(warehouse, spark={"enabled": False}, flight=flight_settings)
    gateway = Gateway(settings, Spark(settings.spark))
    gateway.start()
    yield gateway
    gateway.stop()


def tables(location: str, **trust: object) -> list[list[bytes]]:
    with flight.connect(location, **trust) as client:
        options = flight.FlightCallOptions(timeout=30)
        return [info.descriptor.path[:2] for info in client.list_flights(b"", options)]


def test_who_trusts_the_authority_gets_in(serving: Gateway, authority: Authority) -> None:
    assert serving.location.startswith("grpc+tls://")
    assert len(tables(serving.location, tls_root_certs=authority.root)) == 1


def test_a_foreign_authority_and_plain_text_do_not_get_in(serving: Gateway, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger").create()
    with pytest.raises(flight.FlightUnavailableError):
        tables(serving.location, tls_root_certs=stranger.root)
    with pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)):
        tables(serving.location.replace("grpc+tls", "grpc"))


def test_a_certificate_for_another_name_is_not_taken(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue("lake.example.com")
    flight_settings = {"tls_certificate": certificate, "tls_key": key}
    settings = settings_for(tmp_path, spark={"enabled": False}, flight=flight_settings)
    gateway = Gateway(settings, Spark(settings.spark))
    gateway.start()
    try:
        with pytest.raises(flight.FlightUnavailableError):
            tables(gateway.location, tls_root_certs=authority.root)
        assert tables(gateway.location, tls_root_certs=authority.root, override_hostname="lake.example.com") == []
    finally:
        gateway.stop()


def test_files_that_hold_no_certificate_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for named in (tmp_path / "missing.pem", tmp_path / "empty.pem"):
        flight_settings = {"tls_certificate": str(named), "tls_key": str(named)}
        settings = settings_for(tmp_path, spark={"enabled": False}, flight=flight_settings)
        with pytest.raises(RequestError, match=r"flight\.tls_certificate"):
            Gateway(settings, Spark(settings.spark))
