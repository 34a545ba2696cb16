enum Kind { Odd, Even }

class Middle {
  constructor(private numbers: number[]) {
    numbers.sort((a, b) => a - b);
  }
  get kind(): Kind {
    return this.numbers.length % 2 ? Kind.Odd : Kind.Even;
  }
  get value(): number {
    const half = this.numbers.length >> 1;
    const high = this.numbers[half];
    return this.kind === Kind.Odd ? high : (this.numbers[half - 1] + high) / 2;
  }
}

console.log(new Middle((await Bun.stdin.text()).trim().split(" ").map(Number)).value);
