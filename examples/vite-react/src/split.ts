/** What each guest pays, in cents; the first ones pay the cents that do not divide. */
export function split(billCents: number, tipPercent: number, guests: number): number[] {
  if (!Number.isInteger(guests) || guests < 1) {
    throw new RangeError("at least one guest pays");
  }
  const total = billCents + Math.round((billCents * tipPercent) / 100);
  const share = Math.floor(total / guests);
  const rest = total - share * guests;
  return Array.from({ length: guests }, (_, index) => share + (index < rest ? 1 : 0));
}

/** 1250 → "12.50" */
export function money(cents: number): string {
  return (cents / 100).toFixed(2);
}
