"""What a table's protocol asks of its writers, and whether Delta's writer here has it.

A table that asks for something unknown may be read, if its readers need not know
of it, but nobody may write it without doing what the feature says.
"""

from __future__ import annotations

from dataclasses import dataclass

# From this version on features are listed one by one; older versions stand for features that are all known.
_FEATURES_VERSION = 7
# What delta-spark 4.4.0 writes, in small letters; a test compares them with its own list. Left out are the
# features by which commits go through a catalog: the gateway commits by path.
_KNOWN = frozenset(
    {
        "allowcolumndefaults",
        "appendonly",
        "changedatafeed",
        "checkconstraints",
        "checkpointprotection",
        "clustering",
        "columnmapping",
        "deletionvectors",
        "domainmetadata",
        "generatedcolumns",
        "geospatial",
        "geospatial-dev",
        "icebergcompatv1",
        "icebergcompatv2",
        "icebergcompatv3",
        "identitycolumns",
        "incommittimestamp",
        "invariants",
        "materializepartitioncolumns",
        "rowtracking",
        "timestampntz",
        "typewidening",
        "typewidening-preview",
        "v2checkpoint",
        "vacuumprotocolcheck",
        "variantshredding",
        "variantshredding-preview",
        "varianttype",
        "varianttype-preview",
    }
)


@dataclass(frozen=True, slots=True)
class WriterProtocol:
    version: int
    features: frozenset[str] = frozenset()

    @property
    def is_known(self) -> bool:
        names = {name.lower() for name in self.features}
        return self.version <= _FEATURES_VERSION and names <= _KNOWN
