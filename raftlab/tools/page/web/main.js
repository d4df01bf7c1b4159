// The page of one run that is written into it.

import { Run, unpack } from "./data.js";
import { byId } from "./dom.js";
import { Page } from "./page.js";

const run = new Run(await unpack(byId("data").textContent));
byId("data").remove();
const page = new Page(run);
page.start();
byId("loading").remove();
performance.mark("ready");
document.documentElement.dataset.ready = "yes";
