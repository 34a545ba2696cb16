const numbers = (await Bun.stdin.text()).trim().split(" ").map(Number);

/** Takes away the smallest and the largest until nothing is left but the middle. */
function middle(left: readonly number[]): number {
  if (left.length <= 2) return left.reduce((a, b) => a + b) / left.length;
  const rest = [...left];
  rest.splice(rest.indexOf(Math.min(...rest)), 1);
  rest.splice(rest.indexOf(Math.max(...rest)), 1);
  return middle(rest);
}

console.log(middle(numbers));
