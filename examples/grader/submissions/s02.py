"""Leaves it to the standard library."""

from statistics import median

print(median(int(word) for word in input().split()))
