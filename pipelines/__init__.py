"""PySpark streaming jobs that write only changelogs."""
