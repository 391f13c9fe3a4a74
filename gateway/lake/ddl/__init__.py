"""Tables made, altered, moved and dropped, so that a crash leaves the old or the new one."""
