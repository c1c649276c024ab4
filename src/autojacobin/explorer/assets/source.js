// The data beside the page. Each file is a script that calls autojacobinReceive, because a page from a disk may not fetch.

const promises = new Map();
const waiting = new Map();

globalThis.autojacobinReceive = (name, content) => waiting.get(name)?.(content);

export function load(name) {
  if (!promises.has(name)) {
    promises.set(
      name,
      new Promise((resolve, reject) => {
        waiting.set(name, resolve);
        const script = document.createElement("script");
        script.src = `data/${name}.js`;
        script.addEventListener("error", () => {
          promises.delete(name);
          const fix = "keep the folder data beside this page, or export it again";
          reject(new Error(`The file data/${name}.js cannot be loaded; ${fix}.`));
        });
        document.head.append(script);
      }),
    );
  }
  return promises.get(name);
}
