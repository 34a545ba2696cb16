const numbers = (await Bun.stdin.text()).trim().split(" ").map(Number).sort((a, b) => a - b);
const half = numbers.length >> 1;
console.log(numbers.length % 2 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2);
