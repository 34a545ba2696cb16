// Enough of a source map reader for the trial: the original position of a generated one.
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

export class SourceMapConsumer {
  constructor(text) {
    let source = [0, 0];
    this.lines = JSON.parse(text).mappings.split(";").map((line) => {
      let column = 0;
      return line.split(",").filter(Boolean).map((segment) => {
        const [generated, , row = 0, original = 0] = decode(segment);
        column += generated;
        source = [source[0] + row, source[1] + original];
        return [column, ...source];
      });
    });
  }

  original(line, column) {
    const found = this.lines[line - 1]?.findLast(([start]) => start <= column - 1);
    return found ? [found[1] + 1, found[2] + 1] : [0, 0];
  }
}

function decode(segment) {
  const numbers = [];
  let value = 0;
  let shift = 0;
  for (const character of segment) {
    const digit = ALPHABET.indexOf(character);
    value |= (digit & 31) << shift;
    shift += 5;
    if (digit & 32) continue;
    numbers.push(value & 1 ? -(value >> 1) : value >> 1);
    value = shift = 0;
  }
  return numbers;
}
