"""Roots to mirror from and to."""

from tests.maintenance.copies.clones.conftest import disks, roots

__all__ = ["disks", "roots"]
