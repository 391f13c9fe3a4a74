"""`python -m gateway` is the `deltaport` command."""

from gateway.ops.cli import main

main()
