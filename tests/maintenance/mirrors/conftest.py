"""Roots to mirror from and to."""

from tests.maintenance.copies.conftest import disks, roots

__all__ = ["disks", "roots"]
