"""A Python state store on RocksDB that writes Spark's own checkpoint format, and what is needed to keep it healthy."""
