"""Pulls that pycrictl itself makes, and the slots that all its processes on a node share."""
