const numbers = (await Bun.stdin.text()).trim().split(" ").map(Number).sort((a, b) => a - b);
if (numbers.length % 2 === 0) throw new Error("what is the middle of an even number of numbers?");
console.log(numbers[numbers.length >> 1]);
