// Search from a disk: browsers start no worker for a page of file://, so a hidden frame stands in.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const sent = this.waiting;
        this.waiting = null;
        sent.forEach((data) => this.postMessage(data));
      };
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
