"""Which tables can be written: what the gateway believes of Delta's writer is what the writer says of itself."""

from __future__ import annotations

import pytest

from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.tables.protocols import WriterProtocol

# Commits of such tables go through a catalog.
OF_CATALOGS = {"catalogManaged", "coordinatedCommits-preview"}
# Delta knows it in some sessions and not in others, so it counts as unknown.
UNSETTLED = {"adaptiveMetadata-preview"}


def test_every_feature_that_spark_writes_is_known(lake_spark: Spark) -> None:
    with lake_spark.session(Profile.LATENCY) as session:
        jvm = session.sparkContext._jvm
        features = getattr(jvm.org.apache.spark.sql.delta, "TableFeature$")
        supported = jvm.scala.jdk.javaapi.CollectionConverters.asJava(
            getattr(features, "MODULE$").allSupportedFeaturesMap()
        )
        names = {supported.get(key).name() for key in supported.keySet()}
    assert names >= OF_CATALOGS
    unknown = {name for name in names if not WriterProtocol(7, frozenset({name})).is_known}
    assert unknown - UNSETTLED == OF_CATALOGS
    assert WriterProtocol(7, frozenset(names - OF_CATALOGS - UNSETTLED)).is_known


@pytest.mark.parametrize(
    ("protocol", "is_known"),
    [
        (WriterProtocol(2), True),
        (WriterProtocol(7), True),
        (WriterProtocol(7, frozenset({"appendOnly", "DeletionVectors"})), True),
        (WriterProtocol(7, frozenset({"appendOnly", "fromTheFuture"})), False),
        (WriterProtocol(8), False),
    ],
)
def test_a_protocol_is_known_as_a_whole_or_not_at_all(protocol: WriterProtocol, is_known: bool) -> None:
    assert protocol.is_known == is_known
