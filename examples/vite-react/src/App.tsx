import { useState } from "react";
import { money, split } from "./split";

export function App() {
  const [bill, setBill] = useState("84.00");
  const [tip, setTip] = useState(15);
  const [guests, setGuests] = useState(3);
  const cents = Math.round(Number(bill) * 100);
  const shares = Number.isFinite(cents) && cents >= 0 ? split(cents, tip, guests) : [];

  return (
    <main>
      <h1>Tip splitter</h1>
      <label>
        Bill <input value={bill} onChange={(event) => setBill(event.target.value)} />
      </label>
      <label>
        Tip{" "}
        <select value={tip} onChange={(event) => setTip(Number(event.target.value))}>
          {[0, 10, 15, 20].map((percent) => (
            <option key={percent} value={percent}>
              {percent} %
            </option>
          ))}
        </select>
      </label>
      <p>
        Guests <button onClick={() => setGuests(Math.max(1, guests - 1))}>−</button>{" "}
        <output aria-label="guests">{guests}</output>{" "}
        <button onClick={() => setGuests(guests + 1)}>+</button>
      </p>
      {shares.length === 0 ? (
        <p role="alert">The bill is not a number.</p>
      ) : (
        <ol aria-label="shares">
          {shares.map((share, index) => (
            <li key={index}>{money(share)}</li>
          ))}
        </ol>
      )}
    </main>
  );
}
