"""The RPC layer: thin, forwards to the rooms below, decides nothing."""
