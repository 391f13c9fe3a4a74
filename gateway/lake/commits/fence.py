"""The fence of a MERGE: it fails where somebody committed after the head that its statements were judged by.

Which rows are there, whether they changed, which ids and keys are free: all that
is found out at the head. The MERGE then chooses a snapshot of its own, and Delta
looks for conflicts from that one on only. To close the gap, the MERGE's source
also reads the commit after the head. Spark looks for that file when the jobs of
the MERGE run, so after the snapshot was chosen: while there is no such file it
adds no rows, and once there is one, each of its lines fails the MERGE.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame, functions

from gateway.lake.commits.failures import HEAD_MOVED
from gateway.lake.tables.history import commit_file
from gateway.lake.tables.snapshots import LogSnapshot


def fenced(session: Any, source: Any, head: LogSnapshot) -> Any:
    """The same rows, and an error instead of them when the head has moved."""
    # In every column: whatever the MERGE looks at first, it meets the error.
    alarm = functions.raise_error(functions.lit(HEAD_MOVED))
    columns = [alarm.cast(field.dataType).alias(field.name) for field in source.schema.fields]
    lines = _lines_of(session, f"{head.uri}/_delta_log/{commit_file(head.version + 1)}")
    return source.union(lines.select(*columns))


def _lines_of(session: Any, file: str) -> Any:
    jvm, context = session._jvm, session.sparkContext._jsc
    hadoop = jvm.org.apache.hadoop
    job = hadoop.mapred.JobConf(context.hadoopConfiguration())
    job.set("mapreduce.input.fileinputformat.inputdir", _as_input(file))
    text, number, reader = (
        jvm.java.lang.Class.forName(f"org.apache.hadoop.{name}")
        for name in ("io.Text", "io.LongWritable", "mapred.TextInputFormat")
    )
    lines = context.hadoopRDD(job, reader, number, text, 1).values().rdd()
    made = session._jsparkSession.createDataset(lines, jvm.org.apache.spark.sql.Encoders.kryo(text))
    return DataFrame(made.toDF(), session)


def _as_input(file: str) -> str:
    """Hadoop reads its input as patterns, and several of them, parted by commas."""
    pattern = re.sub(r"([\\*?\[\]{}^,])", r"\\\1", file)
    return re.sub(r"([\\,])", r"\\\1", pattern)
