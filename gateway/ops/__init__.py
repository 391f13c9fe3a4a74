"""The process: assembly, life cycle, probes, command line. Imported by nobody."""
