"""Where bytes live: local disk and S3, with every request counted."""
