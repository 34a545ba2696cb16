const numbers = (await Bun.stdin.text()).trim().split(" ").map(Number).sort((a, b) => a - b;
console.log(numbers[numbers.length >> 1]);
