"""Benchmarks of pycrictl, as ratios to a bare program that does the same work in the same run.

Absolute times mean little on another machine. So every benchmark measures pycrictl and a yardstick
in turn, and compares them. ``python -m benchmarks --list`` lists all benchmarks.
"""
