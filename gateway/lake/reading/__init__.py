"""From a version of a table to a stream of rows, by one of two routes."""
