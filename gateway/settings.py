"""Settings: one frozen model, read once from a YAML file and the environment.

Environment variables win over the file: `DELTAPORT_SCAN__ENGINE=spark` sets
`scan.engine`. Unknown keys are errors that name the key, in both places. What
each key means is explained in `conf/gateway.yaml`, where every key stands with its
default; a test keeps the two together, and docs/configuration.md is made of both.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.errors import RequestError

ENV_PREFIX = "DELTAPORT_"
# Read by set-up and by the command line itself; they are not settings.
_OTHER_VARIABLES = frozenset({"DELTAPORT_CONFIG", "DELTAPORT_JARS_DIR", "DELTAPORT_IVY_SETTINGS"})

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ListenSettings(_Section):
    host: str
    port: Port


class FlightSettings(ListenSettings):
    host: str = "127.0.0.1"
    port: Port = 8815
    advertised: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    drain_seconds: Seconds = 60


class HttpSettings(ListenSettings):
    host: str = "127.0.0.1"
    port: Port = 9815


class AccessSettings(_Section):
    file: str | None = None
    tokens: str | None = None
    allow_anonymous_on_network: bool = False


class CatalogSettings(_Section):
    warehouse: str | None = None
    tables: dict[str, str] = Field(default_factory=dict)
    default: bool = False
    description: str = ""


class DiscoverySettings(_Section):
    refresh_seconds: Seconds = 10
    threads: Positive = 8


class RowIdSettings(_Section):
    column: Annotated[str, Field(min_length=1, max_length=255)] = "_rowid"
    adopt: Literal["manual", "auto"] = "manual"


class ScanSettings(_Section):
    engine: Literal["auto", "direct", "spark"] = "auto"
    direct_max_bytes: Positive = 1 << 40
    batch_rows: Positive = 131_072
    batch_bytes: Positive = 16 << 20
    compression: Literal["auto", "none", "lz4", "zstd"] = "auto"
    piece_bytes: Positive = 256 << 20
    endpoint_bytes: Positive = 1 << 30
    max_endpoints: Positive = 4
    concurrent: Positive = 64
    wait_seconds: Seconds = 300
    idle_reader_seconds: Seconds = 300
    statistics: bool = True


class StagingSettings(_Section):
    folder: str = "staging"
    memory_rows: Positive = 65_536
    memory_bytes: Positive = 16 << 20
    max_bytes: Positive = 64 << 30


class WriteSettings(_Section):
    fsync: bool = True
    small_bytes: Positive = 32 << 20
    retry_seconds: Seconds = 60
    group_statements: Positive = 256
    queue_statements: Positive = 1024
    wait_seconds: Seconds = 300
    idempotency_seconds: Seconds = 86_400


class DdlSettings(_Section):
    dropped_keep_days: Annotated[float, Field(ge=0)] = 7


class FilterSettings(_Section):
    depth: Positive = 200
    in_items: Positive = 10_000


class LimitSettings(_Section):
    action_bytes: Positive = 16 << 20
    field_bytes: Positive = 64 << 20
    batch_bytes: Positive = 64 << 20
    returned_bytes: Positive = 4 << 20
    idle_upload_seconds: Seconds = 3600


class TransactionSettings(_Section):
    enabled: bool = True
    idle_seconds: Seconds = 3600
    limit: Positive = 100_000
    secret: SecretStr | None = None


class SparkSettings(_Section):
    enabled: bool = True
    master: str = "local[*]"
    driver_memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*[mgMG]$")] = "2g"
    warm_up: bool = True
    check_seconds: Seconds = 5
    conf: dict[str, str] = Field(default_factory=dict)


class LogSettings(_Section):
    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


def _default_catalogs() -> dict[str, CatalogSettings]:
    return {"lake": CatalogSettings(warehouse="warehouse", default=True)}


class Settings(BaseSettings):
    """Everything that can be configured; each room is given only its own part."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    flight: FlightSettings = FlightSettings()
    http: HttpSettings = HttpSettings()
    access: AccessSettings = AccessSettings()
    catalogs: Annotated[dict[str, CatalogSettings], Field(min_length=1)] = Field(default_factory=_default_catalogs)
    discovery: DiscoverySettings = DiscoverySettings()
    rowids: RowIdSettings = RowIdSettings()
    scan: ScanSettings = ScanSettings()
    staging: StagingSettings = StagingSettings()
    write: WriteSettings = WriteSettings()
    ddl: DdlSettings = DdlSettings()
    filters: FilterSettings = FilterSettings()
    limits: LimitSettings = LimitSettings()
    transactions: TransactionSettings = TransactionSettings()
    spark: SparkSettings = SparkSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - replaced: the environment is passed in
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source here
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        environ = init_settings.init_kwargs.pop("_environ", {})  # type: ignore[attr-defined]
        return _MappingEnvSource(settings_cls, environ), init_settings


class _MappingEnvSource(EnvSettingsSource):
    """The environment as a mapping that was handed in, so that tests need not change the process's own."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the file (if any) and the environment; every defect is one RequestError that names the keys."""
    _refuse_unknown_variables(environ)
    document = _read_document(path) if path is not None else {}
    try:
        settings = Settings(**{**document, "_environ": dict(environ)})
    except ValidationError as error:
        raise RequestError("settings: " + "; ".join(_describe(detail) for detail in error.errors())) from error
    _check_catalogs(settings)
    _check_access(settings)
    return settings


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"settings: cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"settings: {path} is not valid YAML") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise RequestError(f"settings: {path} must hold a mapping of keys to values")
    if "_environ" in document:
        raise RequestError("settings: _environ: unknown key")
    return document


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {name.upper() for name in Settings.model_fields}
    for name in environ:
        if not name.upper().startswith(ENV_PREFIX) or name.upper() in _OTHER_VARIABLES:
            continue
        if name.upper().removeprefix(ENV_PREFIX).split("__")[0] not in known:
            raise RequestError(f"settings: {name}: unknown environment variable")


def _describe(detail: Any) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    return f"{key}: unknown key" if detail["type"] == "extra_forbidden" else f"{key}: {detail['msg']}"


def _check_access(settings: Settings) -> None:
    access = settings.access
    if (settings.flight.tls_certificate is None) != (settings.flight.tls_key is None):
        raise RequestError("settings: flight.tls_certificate and flight.tls_key are given together, or neither is")
    if access.tokens is not None and access.file is None:
        raise RequestError("settings: access.tokens needs access.file, which says what the tokens' roles may do")
    if access.file is None and not access.allow_anonymous_on_network and not _is_loopback(settings.flight.host):
        raise RequestError(
            f"settings: flight.host {settings.flight.host} can be reached from the network, and there are no access "
            "rules: set access.file and access.tokens, or access.allow_anonymous_on_network where everybody may do all"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_catalogs(settings: Settings) -> None:
    defaults = [name for name, catalog in settings.catalogs.items() if catalog.default]
    if len(defaults) > 1:
        raise RequestError(f"settings: catalogs: only one may be the default, not {' and '.join(defaults)}")
    folded: dict[str, str] = {}
    for name, catalog in settings.catalogs.items():
        if catalog.warehouse is None and not catalog.tables:
            raise RequestError(f"settings: catalogs.{name}: give a warehouse, tables, or both")
        if other := folded.get(name.lower()):
            raise RequestError(f"settings: catalogs: {other} and {name} differ only in case")
        folded[name.lower()] = name
