/** Wrong on purpose: centuries are leap years only every four hundred years. */
export function isLeap(year: number): boolean {
  return year % 4 === 0;
}
