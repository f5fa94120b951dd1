"""CRI-O's pulls, seen through growing files and stored layers."""
