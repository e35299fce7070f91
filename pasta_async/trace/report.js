"use strict";

const { answer, baseline } = JSON.parse(document.getElementById("data").textContent);
for (const part of document.querySelectorAll("#answer [data-thread]")) pasta.tint(part, Number(part.dataset.thread));
pasta.timeline(document.getElementById("timeline"), answer, baseline);
pasta.showNumbers(document.getElementById("numbers"), answer, baseline);
