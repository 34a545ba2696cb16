"""Hopes that the numbers get sorted in the end."""

numbers = list(map(int, input().split()))
while numbers != sorted(numbers):
    numbers[0], numbers[1] = numbers[1], numbers[0]
print(numbers[len(numbers) // 2])
