/** The same in a page of a browser, which `driver-browser.ts` speaks for; see `operations.ts`. */

import { ask } from "./operations.js";

interface Page {
  /** Called by the browser's debugger. */
  asked?: (line: string) => void;
  /** Tells it. */
  said(line: string): void;
}

const page = globalThis as unknown as Page;
page.asked = (line) => {
  // The service answers pages of its own origin only: the server of this page passes requests on.
  const asked = JSON.parse(line);
  ask(JSON.stringify({ ...asked, servers: location.origin }), page.said);
};
page.said("");
