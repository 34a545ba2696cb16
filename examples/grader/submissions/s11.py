"""Says more than it was asked."""

numbers = sorted(map(int, input().split()))
print("sorted:", numbers)
print(numbers[len(numbers) // 2])
