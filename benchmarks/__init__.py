"""How fast pycrictl is, as ratios to a bare program that does the same work in the same run.

Absolute times say little on somebody else's machine. So every benchmark measures two things in
turn, ours and a yardstick, and says how they compare. ``python -m benchmarks --list`` names them.
"""
