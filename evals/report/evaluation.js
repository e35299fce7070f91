"use strict";

const places = document.querySelectorAll(".timeline");
JSON.parse(document.getElementById("data").textContent).forEach(({ answer, baseline, rounds }, index) => {
  pasta.timeline(places[index], answer, { baseline, rounds });
  pasta.showNumbers(places[index].nextElementSibling, answer, baseline);
});
