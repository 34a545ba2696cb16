import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { App } from "./App";

afterEach(cleanup);

const shares = () => screen.getAllByRole("listitem").map((item) => item.textContent);

it("splits the bill among three at first", () => {
  render(<App />);
  expect(shares()).toEqual(["32.20", "32.20", "32.20"]);
});

it("splits anew for one guest more", () => {
  render(<App />);
  fireEvent.click(screen.getByText("+"));
  expect(shares()).toEqual(["24.15", "24.15", "24.15", "24.15"]);
});

it("says so when the bill is not a number", () => {
  render(<App />);
  fireEvent.change(screen.getByLabelText("Bill"), { target: { value: "abc" } });
  expect(screen.getByRole("alert").textContent).toBe("The bill is not a number.");
});
