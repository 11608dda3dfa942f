// Only in a page that grposweep serves: loads the page again when the sweep has moved on, but not under an open window.

const SECONDS = 5;

async function follow() {
  try {
    const stamp = await (await fetch("stamp")).text();
    if (stamp !== DATA.stamp && !document.querySelector("dialog[open]")) location.reload();
  } catch { // the server has ended: the page stays as it is
  }
}

if (DATA.stamp) setInterval(follow, 1000 * SECONDS);
