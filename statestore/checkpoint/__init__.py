"""Any checkpoint at rest: which stores and files it has, and which versions its logs commit. Reads only.

It knows lineages, digests and the journal of a rewrite, but it loads no version. What only a job on `pipelines` writes
is in `root`. The rows of a store are in `contents`.
"""
