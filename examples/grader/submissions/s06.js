// Sorts numbers as if they were words.
const numbers = (await Bun.stdin.text()).trim().split(" ").sort().map(Number);
const half = numbers.length >> 1;
console.log(numbers.length % 2 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2);
