"""Takes no more of the smallest than it needs."""

import heapq

numbers = [int(word) for word in input().split()]
half = len(numbers) // 2
if len(numbers) % 2:
    print(heapq.nsmallest(half + 1, numbers)[-1])
else:
    low, high = heapq.nsmallest(half + 1, numbers)[-2:]
    print((low + high) / 2)
