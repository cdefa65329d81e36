// What is asked of the server.

const link = document.getElementById("link");

async function answered(response) {
  if (response.status === 401 || response.status === 403) throw new Error(await response.text());
  const told = await response.json();
  if (!response.ok) throw new Error(told.error ?? response.statusText);
  return told;
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters);
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`);
  } catch {
    link.textContent = "the dashboard does not answer; trying again";
    throw new Error("the dashboard does not answer");
  }
  link.textContent = "";
  return answered(response);
}

export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-shoal": "1" };
  return answered(await fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

// Calls `work` again and again while the page that asked for it is shown and visible.
export function repeat(work, seconds) {
  let stopped = false;
  let timer = 0;
  async function turn() {
    if (stopped) return;
    if (!document.hidden) {
      try { await work(); } catch (error) { if (!stopped) console.warn(error.message); }
    }
    if (!stopped) timer = setTimeout(turn, seconds * 1000);
  }
  turn();
  return () => { stopped = true; clearTimeout(timer); };
}
