import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  // Relative addresses: the built site works from any folder.
  base: "./",
  plugins: [react()],
  test: { environment: "happy-dom" },
});
