// On the page of messages: a box that leaves those rows which have all words that are typed.
document$.subscribe(() => {
  const page = document.querySelector(".messages")
  if (!page || page.querySelector(".find-message")) return
  const box = Object.assign(document.createElement("input"), {
    type: "search", className: "find-message", placeholder: "Words of the message, such as: rank did not come to",
  })
  box.setAttribute("aria-label", "Words of the message")
  page.prepend(box)
  const rows = [...page.querySelectorAll("tbody tr")].map(row => [row, row.textContent.toLowerCase()])
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/)
    for (const [row, text] of rows) row.hidden = !words.every(word => text.includes(word))
    for (const part of page.querySelectorAll("h2, p, .md-typeset__scrollwrap, table")) {
      const table = part.matches("h2, p") ? null : part.querySelector("tbody") || part
      part.hidden = box.value && (!table || !table.querySelector("tr:not([hidden])"))
    }
  })
})
