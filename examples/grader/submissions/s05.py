"""Forgets that there may be two in the middle."""

numbers = sorted(map(int, input().split()))
print(numbers[len(numbers) // 2])
