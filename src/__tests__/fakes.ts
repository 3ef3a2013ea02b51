/** A fake of the browser's WebSocket, driven by the test. The real one is used in ui-tests/. */

export class FakeSocket {
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  readonly sent: any[] = [];
  closed = false;

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(): void {
    this.closed = true;
  }

  /** What a server would do. */
  accept(): void {
    this.onopen?.();
  }

  say(message: object | string): void {
    const data =
      typeof message === 'string' ? message : JSON.stringify(message);
    this.onmessage?.({ data });
  }

  breakOff(code = 1006): void {
    this.onclose?.({ code });
  }
}

/** A factory of fake sockets that remembers them. */
export function fakeSockets(): { open: () => WebSocket; all: FakeSocket[] } {
  const all: FakeSocket[] = [];
  const open = () => {
    const socket = new FakeSocket();
    all.push(socket);
    return socket as unknown as WebSocket;
  };
  return { open, all };
}
