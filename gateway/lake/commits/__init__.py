"""How a commit is noted, guarded, fenced and made, and how it is settled when its outcome is unclear."""
