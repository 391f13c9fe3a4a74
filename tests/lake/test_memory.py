"""Memory follows what a read hands over, not what lies compressed in files: measured in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import convert_to_deltalake, write_deltalake

from gateway.lake.reading.widths import Widths
from tests.lake.reading import open_table, read

MEGABYTE = 1 << 20
ROWS = 600
PROJECT = Path(__file__).parent.parent.parent


def measured(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lake.measured", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a megabyte each that take three kilobytes on disk: a dictionary holds their one value."""
    path = tmp_path_factory.mktemp("repeated") / "t"
    path.mkdir()
    # Written from the dictionary: spelled out, the rows would take three gigabytes here.
    text = pa.array(["x" * MEGABYTE])
    places, ends = pa.array([0] * ROWS, pa.int32()), pa.array(range(ROWS + 1), pa.int32())
    value = pa.DictionaryArray.from_arrays(places, text)
    rows = pa.table(
        {
            "text": value,
            "blob": pa.DictionaryArray.from_arrays(places, text.cast(pa.binary())),
            "list": pa.ListArray.from_arrays(ends, value),
            "struct": pa.StructArray.from_arrays([value], ["a"]),
            "map": pa.MapArray.from_arrays(ends, pa.array(["k"] * ROWS), value),
        }
    )
    options = {"dictionary_pagesize_limit": 1 << 30, "compression": "zstd", "store_schema": False}
    pq.write_table(rows, path / "rows.parquet", **options)
    convert_to_deltalake(path)
    assert sum(file.stat().st_size for file in path.glob("*.parquet")) < 10_000
    return path


@pytest.mark.parametrize("column", ["text", "blob", "list", "struct", "map"])
def test_values_that_a_dictionary_repeats_do_not_fill_memory(repeated: Path, column: str) -> None:
    result = measured("direct", "scan", repeated, column)
    assert result["rows"] == ROWS
    assert result["widest"] < 40 * MEGABYTE
    assert result["grew"] < 300 * MEGABYTE


@pytest.mark.spark
def test_values_that_a_dictionary_repeats_do_not_end_the_jvm(repeated: Path) -> None:
    """Its heap has a gigabyte, of which one partition with all its copies would need more."""
    result = measured("spark", "scan", repeated, "list", "blob")
    assert result["rows"] == 2 * ROWS
    assert result["widest"] < 40 * MEGABYTE
    assert result["grew"] < 300 * MEGABYTE


def test_a_look_up_of_rows_all_over_a_table_keeps_those_rows_alone(tmp_path: Path) -> None:
    rows = 2_500_000
    texts = pa.array([f"{row:>200}" for row in range(1_000)])
    values = texts.take(pa.array([row % 1_000 for row in range(rows)], pa.int32()))
    write_deltalake(tmp_path / "t", pa.table({"_rowid": pa.array(range(rows), pa.int64()), "v": values}))
    result = measured("direct", "look_up", tmp_path / "t", 1_000)
    assert result["rows"] == 2_500
    assert result["grew"] < 350 * MEGABYTE


def test_wide_rows_among_narrow_ones_come_in_small_batches(tmp_path: Path) -> None:
    """No average tells of them, so the first batch is a surprise; it is cut before its values are unfolded."""
    path = tmp_path / "t"
    path.mkdir()
    text = "x" * MEGABYTE
    lists = [[] if row % 100 else [text] * 2 for row in range(12_000)]
    blobs = [b"" if row % 100 else text.encode() for row in range(12_000)]
    rows = pa.table({"list": lists, "blob": pa.array(blobs)})
    pq.write_table(rows, path / "rows.parquet", dictionary_pagesize_limit=1 << 30, compression="zstd")
    convert_to_deltalake(path)
    table = open_table(path)
    for column in ("list", "blob"):
        result = read(table.current(), [column])
        assert max(batch.nbytes for batch in result.batches) <= 2 * 16 * MEGABYTE + MEGABYTE
        assert sum(batch.num_rows for batch in result.batches) == 12_000


def test_narrow_texts_still_come_in_large_batches(tmp_path: Path) -> None:
    rows = 300_000
    data = {"s": [f"text {row % 500}" for row in range(rows)], "l": [[f"tag {row % 50}"] for row in range(rows)]}
    write_deltalake(tmp_path / "t", pa.table(data))
    result = read(open_table(tmp_path / "t").current())
    assert len(result.batches) <= 12


def test_the_longest_value_of_a_dictionary_is_known_before_a_row_is_read(repeated: Path) -> None:
    snapshot = open_table(repeated).current().log
    known = Widths()
    for column in snapshot.schema.columns:
        direct, spark = (known.row_bytes(snapshot, [column], [0], expands_texts=expands) for expands in (False, True))
        assert spark >= MEGABYTE
        # Texts at the top stay views of the one value.
        assert direct < 10_000 if column.name == "text" else direct >= MEGABYTE
