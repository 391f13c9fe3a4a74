from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from gateway.errors import RequestError
from gateway.settings import Settings, load_settings

EXAMPLE = Path(__file__).parent.parent / "conf" / "gateway.yaml"


def test_the_example_file_holds_every_key_with_its_default() -> None:
    assert load_settings(EXAMPLE, {}) == load_settings(None, {})
    shown = load_settings(None, {}).model_dump(mode="json")
    written = yaml.safe_load(EXAMPLE.read_text())
    assert {section: set(keys) for section, keys in shown.items()} == {s: set(keys) for s, keys in written.items()}


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("scan: {engine: direct, batch_rows: 5}\n")
    settings = load_settings(file, {"DELTAPORT_SCAN__ENGINE": "spark"})
    assert (settings.scan.engine, settings.scan.batch_rows) == ("spark", 5)


@pytest.mark.parametrize(
    ("text", "environ", "named"),
    [
        ("scann: {}", {}, "scann: unknown key"),
        ("scan: {engin: spark}", {}, "scan.engin: unknown key"),
        ("catalogs: {lake: {warehouse: w, wharehouse: x}}", {}, "catalogs.lake.wharehouse: unknown key"),
        ("", {"DELTAPORT_SCAN__ENGIN": "x"}, "scan.engin: unknown key"),
        ("", {"DELTAPORT_SCANN__ENGINE": "x"}, "DELTAPORT_SCANN__ENGINE: unknown environment variable"),
        ("flight: {port: 99999}", {}, "flight.port"),
        ("scan: {engine: turbo}", {}, "scan.engine"),
        ("catalogs: {}", {}, "catalogs"),
        ("catalogs: {a: {}}", {}, "catalogs.a: give a warehouse"),
        (
            "catalogs: {a: {warehouse: x, default: true}, b: {warehouse: y, default: true}}",
            {},
            "only one may be the default",
        ),
        ("catalogs: {a: {warehouse: x}, A: {warehouse: y}}", {}, "differ only in case"),
        ("- a list", {}, "must hold a mapping"),
        ("a: [", {}, "is not valid YAML"),
    ],
)
def test_a_defect_is_an_error_that_names_the_key(
    tmp_path: Path, text: str, environ: dict[str, str], named: str
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as refused:
        load_settings(file, environ)
    assert named in refused.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RequestError, match=r"cannot read nowhere\.yaml"):
        load_settings(Path("nowhere.yaml"), {})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings(None, {}).scan.engine = "spark"  # type: ignore[misc]


def test_secrets_are_not_printed() -> None:
    settings = load_settings(None, {"DELTAPORT_TRANSACTIONS__SECRET": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.model_dump(mode="json"))
    assert isinstance(settings, Settings)
