// Choices that show one of several parts, and folded sections.

function showChoice(choice, value) {
  for (const part of document.querySelectorAll(`[data-choice="${choice}"][data-value]`))
    part.hidden = part.dataset.value !== value;
  for (const radio of document.querySelectorAll(`.choices[data-choice="${choice}"] input`))
    radio.checked = radio.value === value;
}

function startPage() {
  for (const chooser of document.querySelectorAll(".choices")) {
    chooser.hidden = false;
    chooser.addEventListener("change", (event) => showChoice(chooser.dataset.choice, event.target.value));
    showChoice(chooser.dataset.choice, chooser.querySelector("input").value);
  }
  for (const heading of document.querySelectorAll(".of-choice")) heading.hidden = true; // the choice shows it
  for (const link of document.querySelectorAll("nav a")) // a link to a folded section unfolds it
    link.addEventListener("click", () => {
      const fold = document.querySelector(`${link.getAttribute("href")} > details`);
      if (fold) fold.open = true;
    });
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
}

startPage();
