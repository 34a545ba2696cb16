"""Loses the half."""

numbers = sorted(map(int, input().split()))
half = len(numbers) // 2
print(numbers[half] if len(numbers) % 2 else (numbers[half - 1] + numbers[half]) // 2)
